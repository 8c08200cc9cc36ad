"""The fixed layers of the onion, one a file; ``Guard`` puts them in their order."""
