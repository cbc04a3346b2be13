//! Rules about a file as Rust: the length of non-test code, and forbidden tokens.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

const COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

const FORBIDDEN_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Files that may hold `unsafe`, each with the reason at its head.
const UNSAFE_FILES: [&str; 0] = [];

pub(crate) fn not_rust(text: &str) -> Vec<String> {
    let error = syn::parse_file(text).err();
    error.map(|error| format!("line {}: {error}", error.span().start().line)).into_iter().collect()
}

pub(crate) fn long_file(text: &str) -> Vec<String> {
    let tests: usize = measure(text).tests.into_iter().map(Iterator::count).sum();
    let lines = text.lines().count() - tests;
    if lines > FILE_LINES_MAX { vec![format!("{lines} lines")] } else { Vec::new() }
}

pub(crate) fn long_lines(text: &str) -> Vec<String> {
    let tests = measure(text).tests;
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.chars().count()))
        .filter(|(_, columns)| *columns > COLUMNS_MAX)
        .filter(|(number, _)| !tests.iter().any(|lines| lines.contains(number)))
        .map(|(number, columns)| format!("line {number} has {columns} columns"))
        .collect()
}

pub(crate) fn long_functions(text: &str) -> Vec<String> {
    measure(text)
        .functions
        .into_iter()
        .map(|(name, lines)| (name, *lines.start(), lines.count()))
        .filter(|(_, _, count)| *count > FUNCTION_LINES_MAX)
        .map(|(name, start, count)| format!("line {start}: {name} has {count} lines"))
        .collect()
}

pub(crate) fn forbidden_tokens(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    find_forbidden(text.parse().unwrap_or_default(), &mut found);
    if UNSAFE_FILES.contains(&path) {
        found.retain(|what| !what.ends_with("unsafe"));
    }
    found
}

#[derive(Default)]
struct Measure {
    /// Outside of test code: name, and lines from the signature to the closing brace.
    functions: Vec<(String, RangeInclusive<usize>)>,
    /// The lines that are compiled for tests only.
    tests: Vec<RangeInclusive<usize>>,
}

/// Empty if the text is not Rust; another rule reports that.
fn measure(text: &str) -> Measure {
    let mut measure = Measure::default();
    if let Ok(file) = syn::parse_file(text) {
        measure.visit_file(&file);
    }
    measure
}

impl Measure {
    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = signature.span().start().line..=block.span().end().line;
        self.functions.push((signature.ident.to_string(), lines));
    }
}

impl<'ast> Visit<'ast> for Measure {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(module) => &module.attrs,
            syn::Item::Fn(function) => &function.attrs,
            syn::Item::Impl(implementation) => &implementation.attrs,
            _ => return visit::visit_item(self, item),
        };
        if attributes.iter().any(is_cfg_test) {
            self.tests.push(item.span().start().line..=item.span().end().line);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.note(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let condition = attribute.parse_args::<syn::Path>();
    attribute.path().is_ident("cfg") && condition.is_ok_and(|path| path.is_ident("test"))
}

/// Searches tokens instead of syntax, so that it also sees the content of macros.
fn find_forbidden(tokens: TokenStream, found: &mut Vec<String>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, tree) in trees.iter().enumerate() {
        let next = trees.get(index + 1);
        match tree {
            TokenTree::Ident(ident) => {
                let line = ident.span().start().line;
                let name = ident.to_string();
                if FORBIDDEN_MACROS.contains(&name.as_str()) && next.is_some_and(is_bang) {
                    found.push(format!("line {line}: {name}!"));
                } else if name == "unsafe" {
                    found.push(format!("line {line}: unsafe"));
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if let Some(TokenTree::Group(group)) = next
                    && group.delimiter() == Delimiter::Bracket
                    && is_ignore(group.stream())
                {
                    found.push(format!("line {}: #[ignore]", punct.span().start().line));
                }
            }
            TokenTree::Group(group) => find_forbidden(group.stream(), found),
            _ => {}
        }
    }
}

fn is_bang(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == '!')
}

/// `ignore`, `ignore = "…"`, and `cfg_attr(…, ignore)`.
fn is_ignore(attribute: TokenStream) -> bool {
    let mut trees = attribute.into_iter();
    let is_ident = |tree: &TokenTree, name: &str| matches!(tree, TokenTree::Ident(i) if i == name);
    match trees.next() {
        Some(first) if is_ident(&first, "ignore") => true,
        Some(first) if is_ident(&first, "cfg_attr") => match trees.next() {
            Some(TokenTree::Group(group)) => {
                group.stream().into_iter().any(|tree| is_ident(&tree, "ignore"))
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("/// Docs.\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_is_measured_without_its_docs() {
        assert!(long_functions(&function(70)).is_empty());
        assert_eq!(long_functions(&function(71)), ["line 2: f has 71 lines"]);
        let method = format!("impl T {{ mod_free!(); {} }}", function(71));
        assert_eq!(long_functions(&method).len(), 1);
        let test = format!("#[cfg(test)]\nmod tests {{\n{}}}", function(71));
        assert!(long_functions(&test).is_empty());
    }

    #[test]
    fn a_file_is_measured_without_its_tests() {
        let code = "use a;\n".repeat(500);
        assert!(long_file(&format!("{code}#[cfg(test)]\nmod tests {{\n\n\n}}\n")).is_empty());
        assert_eq!(long_file(&format!("{code}use b;\n")), ["501 lines"]);
    }

    #[test]
    fn a_long_line_is_found_outside_of_tests() {
        let (fits, long) = (format!("// {}\n", "é".repeat(97)), format!("// {}\n", "x".repeat(98)));
        let test = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(long_lines(&format!("{fits}{long}{test}")), ["line 2 has 101 columns"]);
    }

    #[test]
    fn what_does_not_parse_is_found() {
        assert_eq!(not_rust("fn f() {}\nfn g( {}\n").len(), 1);
        assert!(not_rust("fn f() {}\n").is_empty());
    }

    #[test]
    fn forbidden_tokens_are_found_also_inside_macros() {
        let sample = "fn f() { vec![todo!(), dbg!(1)]; unimplemented!() }\n\
                      #[ignore = \"slow\"] fn g() {}\n\
                      #[cfg_attr(x, ignore)] fn h() { unsafe { i() } }";
        assert_eq!(forbidden_tokens("a.rs", sample).len(), 6);
        let fine = "// todo!()\nfn f() { let todo = \"dbg!\"; #[expect(unused)] let a = !todo; }";
        assert!(forbidden_tokens("a.rs", fine).is_empty());
    }
}
