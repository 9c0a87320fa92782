"""The APIs of OpenAI and Anthropic: how a call is read and an answer is written."""
