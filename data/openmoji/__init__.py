"""The embedded world: OpenMoji drawings as things that nobody has memorised, and all that can be asked of them."""
