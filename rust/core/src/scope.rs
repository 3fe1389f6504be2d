//! Scopes: what separates two identical token strings.

/// The name of an adapter: a number and a text are never equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterId {
    /// A number.
    Number(i64),
    /// A text.
    Name(String),
}

/// An adapter whose weights the KV depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Adapter {
    /// Its name.
    pub id: AdapterId,
    /// Which weights are loaded under that name.
    pub version: i64,
}

/// A cache salt: bytes and a text are never equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Salt {
    /// Bytes.
    Bytes(Vec<u8>),
    /// A text.
    Text(String),
}

/// The typed fields of a scope. What is absent is not equal to anything that is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Scope {
    /// The adapter.
    pub adapter: Option<Adapter>,
    /// The salt.
    pub salt: Option<Salt>,
}
