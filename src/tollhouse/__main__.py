"""``python -m tollhouse``: the command line where the installed command is not on the path."""

from __future__ import annotations

from tollhouse.cli import main

if __name__ == "__main__":
    main()
