"""Public test tools: conformance suite, faulty receiver, proxies, crash points."""
