"""Units of text: lexicons and subwords."""
