"""`repository-tests`: write the files of an answer into a repository and run its tests."""
