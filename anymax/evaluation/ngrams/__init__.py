"""Models that count words, to compare with."""
