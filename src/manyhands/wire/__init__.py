"""The wire: messages between real hosts over Zenoh. No other layer knows Zenoh."""
