"""The web page behind hmrnn explore. Nothing here yet."""
