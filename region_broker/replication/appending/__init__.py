"""What is written into a partition beside client batches: markers, and the bytes of the acting region."""
