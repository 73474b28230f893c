"""Models that follow the text they are measured on."""
