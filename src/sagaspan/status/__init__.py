"""What needs a person: listed with the next command, and counted for whoever is on call."""
