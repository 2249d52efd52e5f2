"""Models, a server and a page for the tests of the explorer."""
