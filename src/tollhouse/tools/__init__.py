"""Tools that are declared, not written: adapters from other kinds of endpoint to the contract of a tool."""
