"""Every figure that we publish, as a row that measures both sides in the same run and prints how it was made."""
