"""What tests are made of: networks to compare, small runs, commands, a browser, a GPU that is not there."""
