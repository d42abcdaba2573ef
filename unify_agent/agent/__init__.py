"""The agent: think, research, recaption, generate (paper, section 5.2), its record and its rules."""
