"""Post-editing: a BERT that reads a sentence and its translation, and a decoder of BERT's layers that corrects it."""
