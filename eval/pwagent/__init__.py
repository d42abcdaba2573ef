"""PW-Agent: a picture is judged by what its prompt implies, one checkable fact at a time (papers/picworld.txt)."""
