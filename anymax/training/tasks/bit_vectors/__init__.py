"""Images coded in bits."""
