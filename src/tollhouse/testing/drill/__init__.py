"""The drill: real processes, killed, stopped and cut off over many seeds, judged by what the receiver saw."""
