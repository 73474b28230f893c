"""Language models: the contract, the config, building."""
