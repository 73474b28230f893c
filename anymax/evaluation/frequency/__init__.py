"""Loss by the frequency of words."""
