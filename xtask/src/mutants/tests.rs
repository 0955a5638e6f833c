//! The list is read exactly, and only a failed test kills a mutant.

use super::*;

const ONE: &str = r#"
# A comment.
[[mutant]]
id = "M1"
file = "src/a.rs"
find = "a < b \"x\""
replace = 'a <= b "x"'
tests = "test(a)"
about = "an edge moves"

[[mutant]]
id = "M2"
file = "src/a.rs"
find = '''
fn a() {
    b();
'''
replace = "c\n"
tests = "test(b)"
about = "a call is lost"
equivalent = "b does nothing"
"#;

#[test]
fn list_is_read_with_quotes_lines_and_comments() {
    let mutants = parse(ONE).unwrap();
    assert_eq!((mutants[0].find.as_str(), mutants[0].replace.as_str()), ("a < b \"x\"", "a <= b \"x\""));
    assert_eq!(mutants[0].equivalent, None);
    assert_eq!((mutants[1].find.as_str(), mutants[1].replace.as_str()), ("fn a() {\n    b();\n", "c\n"));
    assert_eq!(mutants[1].equivalent.as_deref(), Some("b does nothing"));
}

#[test]
fn wrong_list_is_refused_with_its_line() {
    let refused = |from: &str, to: &str| parse(&ONE.replacen(from, to, 1)).unwrap_err();
    assert_eq!(refused("id = \"M2\"", "id = \"M1\""), "two mutants are called 'M1'");
    assert_eq!(refused("tests = \"test(a)\"", ""), "mutant M1 has no tests");
    assert_eq!(refused("about = \"an", "bout = \"an"), "mutant M1 has no about");
    assert_eq!(refused("'''\nreplace", "\nreplace"), "line 14: the text has no end");
    assert!(refused("\"src/a.rs\"", "src/a.rs").starts_with("line 5: "));
    assert!(refused("\"x\\\"\"", "\"x\"\"").starts_with("line 6: "));
}

#[test]
fn change_must_apply_exactly_once() {
    let mutant = &parse(ONE).unwrap()[0];
    assert_eq!(mutant.apply("if a < b \"x\" {").unwrap(), "if a <= b \"x\" {");
    assert_eq!(mutant.apply("").unwrap_err(), "`find` occurs 0 times, it has to occur once");
    assert!(mutant.apply("a < b \"x\" a < b \"x\"").is_err());
}

#[test]
fn only_failed_test_kills() {
    let path = Path::new("log");
    let killed = "   Compiling a\n        FAIL [   0.010s] tenure-core a::b\n";
    assert_eq!(result_of_failure(killed, path), MutantResult::Killed);
    let empty = "     Summary [   0.000s] 0 tests run: 0 passed\nerror: no tests to run\n";
    assert!(matches!(result_of_failure(empty, path), MutantResult::Broken(_)));
}

#[test]
fn only_named_packages_are_built() {
    assert_eq!(packages_of("package(tenure-core) & test(a)"), ["-p", "tenure-core"]);
    let two = "(package(tenure-core) & test(a)) | (package(tenure) & test(b))";
    assert_eq!(packages_of(two), ["-p", "tenure-core", "-p", "tenure"]);
    assert_eq!(packages_of("test(a)"), ["--workspace"]);
}

#[test]
fn figure_counts_every_result_once() {
    let mutants = parse(ONE).unwrap();
    let verdicts = [(&mutants[0], MutantResult::Survived), (&mutants[1], MutantResult::Equivalent)];
    let table = table(&verdicts);
    assert!(table.contains("| M1 | SURVIVED | an edge moves |"), "{table}");
    assert!(table.contains("0 killed and 1 equivalent of 2; 1 survived or broken, 0 not run"), "{table}");
}

#[test]
fn options_are_read_and_unknown_ones_refused() {
    let read = options(&["--only", "M1", "--minutes", "3", "--only", "M2"]).unwrap();
    assert_eq!(read, Options { only: vec!["M1".to_owned(), "M2".to_owned()], minutes: Some(3) });
    assert!(options(&["--minutes"]).is_err() && options(&["--fast", "1"]).is_err());
}
