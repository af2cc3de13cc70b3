"""The SQL of the PostgreSQL store, one module for each table; nothing else in the package holds a statement on them.

``@`` stands before every name of ours and becomes the schema, if the URL names one (:meth:`..target.Target.text`).
Plans are kept for the life of a connection, so no statement may need statistics to be fast: a plan made for the empty
table serves the full one.
"""
