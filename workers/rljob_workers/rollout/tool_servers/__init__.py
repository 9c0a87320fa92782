"""Tools of MCP servers: which there are, an episode's sessions with their servers, and the two transports."""
