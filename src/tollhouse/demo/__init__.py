"""The demo: real processes killed at the worst moments, and a billing service whose book tells what took effect.

``tollhouse demo`` plays it (``play.py``). Nothing is imported here, since each worker of the demo pays for it.
"""
