// What cpp-httplib makes of forms: frames on standard input in pairs (a length of four bytes, little-endian, then the
// Content-Type, or the body), one line for each pair on standard output: each part's name and value in hexadecimal, with an
// at sign between them for a file, an equals sign for another.
#include <cstdio>
#include <httplib.h>
#include <string>
#include <vector>

static std::string hex(const std::string & s) {
    std::string out;
    char two[3];
    for (unsigned char c : s) {
        snprintf(two, sizeof two, "%02x", c);
        out += two;
    }
    return out;
}

static bool frame(std::string & out) {
    unsigned char head[4];
    if (fread(head, 1, 4, stdin) != 4) return false;
    out.resize(head[0] | head[1] << 8 | head[2] << 16 | head[3] << 24);
    return fread(&out[0], 1, out.size(), stdin) == out.size();
}

struct part {
    std::string name, value;
    bool file;
};

int main() {
    std::string type, body;
    while (frame(type) && frame(body)) {
        std::vector<part> parts;
        std::string boundary;
        httplib::detail::FormDataParser parser;
        bool ok = type.rfind("multipart/form-data", 0) == 0 && httplib::detail::parse_multipart_boundary(type, boundary);
        if (ok) {
            parser.set_boundary(std::move(boundary));
            ok = parser.parse(
                     body.data(), body.size(),
                     [&](const httplib::FormData & f) {
                         parts.push_back({f.name, "", !f.filename.empty()});
                         return true;
                     },
                     [&](const char * data, size_t n) {
                         parts.back().value.append(data, n);
                         return true;
                     }) &&
                 parser.is_valid();
        }
        std::string line;
        for (const auto & p : parts) line += (line.empty() ? "" : "\t") + hex(p.name) + (p.file ? "@" : "=") + hex(p.value);
        puts(!ok ? "refused" : line.empty() ? "empty" : line.c_str());
    }
}
