//! The README and the guides in docs/: their code blocks are compiled and run with the documentation's other examples.

#[doc = include_str!("../README.md")]
struct ReadmeGuide;

#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStartedGuide;

#[doc = include_str!("../../../docs/locks.md")]
struct LocksGuide;

#[doc = include_str!("../../../docs/elections.md")]
struct ElectionsGuide;

#[doc = include_str!("../../../docs/registration.md")]
struct RegistrationGuide;

#[doc = include_str!("../../../docs/tasks.md")]
struct TasksGuide;

// Its examples need the features `testing` and `conformance`.
#[cfg(all(feature = "testing", feature = "conformance"))]
#[doc = include_str!("../../../docs/testing-your-code.md")]
struct TestingYourCodeGuide;
