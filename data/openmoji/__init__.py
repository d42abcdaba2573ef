"""The embedded world: OpenMoji drawings as things that nobody has memorised, with everything that can be asked of them."""
