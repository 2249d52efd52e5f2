"""What the explorer's tests read."""

TEXT = "the cat sat on the mat.\nthe dog lay by the door, and the cat sat on the dog. " * 4
DRAWN = [[[20, 90], [20, 150]], [[10, 110], [40, 110]], [[60, 90], [60, 150], [80, 130], [100, 150]], [[120, 100]]]
SMALL = {"hidden_sizes": (16, 16, 16), "output_size": 16, "embedding_size": 8, "boundary_bias": 0.05}
