"""What plugins offer and how it is found: hook specifications, device protocols and the registry."""
