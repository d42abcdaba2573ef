"""The data app: build the embedded world, look at data, check it (`python -m data ...`)."""
