"""The record of what was asked, sent and settled, and the rules of a call's life."""
