"""Unify-Agent: a BAGEL model that thinks, searches, recaptions and then draws.

Importing the package costs nothing and does not import torch; what it offers is loaded when it is named.
"""

__version__ = "0.1.0"
