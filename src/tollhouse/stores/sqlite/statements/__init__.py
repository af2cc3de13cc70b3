"""The SQL of the SQLite store, one module for each table; nothing else in the package holds a statement on them."""
