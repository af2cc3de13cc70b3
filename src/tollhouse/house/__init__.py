"""The house: the public face of the gate, the doubt services and the ledger."""

from tollhouse.house.house import Tollhouse

__all__ = ["Tollhouse"]
