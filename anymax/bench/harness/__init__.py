"""Timing, memory, the machine, peers, and the report of every benchmark."""
