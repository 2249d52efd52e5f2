"""What the commands tell. The work is done by public functions elsewhere, the flags are in cli.py."""
