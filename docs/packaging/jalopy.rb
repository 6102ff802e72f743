# A formula for a tap. The release fills in `homepage`, and `url` and `sha256` of its source archive.
class Jalopy < Formula
  include Language::Python::Virtualenv

  desc "Chat with a language model on the computer you already own"
  homepage "https://jalopy.invalid"
  url "https://jalopy.invalid/jalopy-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on :linux
  depends_on "python@3.13"

  def install
    # numba and llvmlite come as wheels: to build them is an hour and an LLVM of its own.
    virtualenv_create(libexec, "python3.13", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--prefer-binary", buildpath
    bin.install_symlink libexec/"bin/jalopy"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/jalopy --version")
  end
end
