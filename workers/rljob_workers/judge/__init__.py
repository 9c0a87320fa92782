"""The judge: rewards that a language model gives, over the same gRPC service as a verifier's."""
