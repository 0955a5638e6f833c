//! Texts and ids as names: the arguments of the front door.
//!
//! **Invariant**: an id of one kind is never accepted as a name of another kind.

use tenure_core::id::{
    ElectionName, InstanceId, InvalidName, LockName, Namespace, NodeId, RegistryKey, ServiceName, TaskId,
};

use crate::identity::{self, Identity};

/// An argument that names something: a `&str`, a `String`, a `&String`, the id itself or a reference to it. Sealed.
///
/// A wrong name is reported by the request that uses it, when it is awaited.
///
/// ```
/// use tenure::{LockName, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let name: LockName = "deploy".parse()?;
/// tenure.lock(&name).await?.release().await?;
/// tenure.lock(name).await?.release().await?;
/// tenure.lock(format!("deploy-{}", 1)).await?.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// An id of another kind is refused by the compiler:
///
/// ```compile_fail
/// # async fn refused(tenure: tenure::Tenure, node: tenure::NodeId) {
/// let _ = tenure.lock(node).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a `{T}`",
    note = "pass a `&str`, a `String`, a `{T}` or a `&{T}`"
)]
pub trait IntoId<T>: sealed::Argument<T> {
    /// The id.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] describes what is wrong with the text.
    fn into_id(self) -> Result<T, InvalidName>;
}

/// What identifies this process to others: a name, or a complete [`Identity`]. Sealed.
///
/// ```
/// use tenure::IntoIdentity;
///
/// let identity = "web-1".into_identity();
/// assert_eq!((identity.node.as_str(), identity.pid), ("web-1", std::process::id()));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not identify a process",
    note = "pass a `&str`, a `String` or an `Identity`"
)]
pub trait IntoIdentity: sealed::Identifies {
    /// The identity. A name is completed with host, process id, user and program of this process.
    fn into_identity(self) -> Identity;
}

mod sealed {
    use super::{Identity, InvalidName};

    /// A kind of id.
    pub trait Id: Clone {
        fn parse_id(text: &str) -> Result<Self, InvalidName>;
    }

    pub trait Argument<T> {}
    impl<T: Id> Argument<T> for &str {}
    impl<T: Id> Argument<T> for String {}
    impl<T: Id> Argument<T> for &String {}
    impl<T: Id> Argument<T> for T {}
    impl<T: Id> Argument<T> for &T {}

    pub trait Identifies {}
    impl Identifies for &str {}
    impl Identifies for String {}
    impl Identifies for Identity {}
}

macro_rules! ids {
    ($($name:ident),+) => {$(
        impl sealed::Id for $name {
            fn parse_id(text: &str) -> Result<$name, InvalidName> {
                $name::parse(text)
            }
        }
    )+};
}

ids!(ElectionName, InstanceId, LockName, Namespace, NodeId, RegistryKey, ServiceName, TaskId);

impl<T: sealed::Id> IntoId<T> for &str {
    fn into_id(self) -> Result<T, InvalidName> {
        T::parse_id(self)
    }
}

impl<T: sealed::Id> IntoId<T> for String {
    fn into_id(self) -> Result<T, InvalidName> {
        T::parse_id(&self)
    }
}

impl<T: sealed::Id> IntoId<T> for &String {
    fn into_id(self) -> Result<T, InvalidName> {
        T::parse_id(self)
    }
}

impl<T: sealed::Id> IntoId<T> for T {
    fn into_id(self) -> Result<T, InvalidName> {
        Ok(self)
    }
}

impl<T: sealed::Id> IntoId<T> for &T {
    fn into_id(self) -> Result<T, InvalidName> {
        Ok(self.clone())
    }
}

impl IntoIdentity for &str {
    fn into_identity(self) -> Identity {
        self.to_owned().into_identity()
    }
}

impl IntoIdentity for String {
    fn into_identity(self) -> Identity {
        Identity { node: self, ..identity::current() }
    }
}

impl IntoIdentity for Identity {
    fn into_identity(self) -> Identity {
        self
    }
}
