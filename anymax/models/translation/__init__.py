"""Translation: an encoder and a decoder with any input layers, output layer and mappings."""
