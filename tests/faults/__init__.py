"""What goes wrong on real machines, made to go wrong on purpose. docs/reliability.md lists what is promised."""
