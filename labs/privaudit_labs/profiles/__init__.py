"""What a server learns of whole clients: the scenario ``client-profile``."""
