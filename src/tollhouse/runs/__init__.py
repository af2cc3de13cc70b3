"""Runs of agents: their journal, the loop that advances them a step at a time, and those who drive it."""
