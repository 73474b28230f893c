"""The Dirichlet experiment over outputs, dimensions and concentrations."""
