//! frontend-gguf
