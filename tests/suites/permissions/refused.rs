//! What an agent's token is refused, and why. Each request is one that an administrator may make:
//! it is right but for who makes it.
