// What nlohmann::json makes of bodies, as llama.cpp uses it: frames on standard input (a length of four bytes,
// little-endian, then the body), one line for each on standard output, as test/parsers.Show writes values.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

using json = nlohmann::ordered_json;

static std::string hex(const std::string & s) {
    std::string out;
    char two[3];
    for (unsigned char c : s) {
        snprintf(two, sizeof two, "%02x", c);
        out += two;
    }
    return out;
}

static std::string show(const json & v) {
    if (v.is_null()) return "null";
    if (v.is_boolean()) return v.get<bool>() ? "true" : "false";
    if (v.is_number_unsigned()) return "i" + std::to_string(v.get<uint64_t>());
    if (v.is_number_integer()) return "i" + std::to_string(v.get<int64_t>());
    if (v.is_number_float()) {
        double d = v.get<double>();
        uint64_t bits;
        memcpy(&bits, &d, sizeof bits);
        char text[32];
        snprintf(text, sizeof text, "f%016llx", (unsigned long long) bits);
        return text;
    }
    if (v.is_string()) return "s" + hex(v.get<std::string>());
    std::string out;
    if (v.is_array()) {
        for (const auto & e : v) out += (out.empty() ? "" : ",") + show(e);
        return "[" + out + "]";
    }
    for (const auto & m : v.items()) out += (out.empty() ? "" : ",") + ("s" + hex(m.key())) + ":" + show(m.value());
    return "{" + out + "}";
}

// A number that is not null has to be a number or a boolean, and within the bounds of 32 bits when it is a floating one: a
// cast beyond them means nothing in C++, and llama.cpp checks its fields' bounds.
static std::string number(const json & v) {
    if (v.is_null()) return "null";
    if (v.is_number_float() && !(std::trunc(v.get<double>()) >= -2147483648.0 && std::trunc(v.get<double>()) <= 2147483647.0)) return "refused";
    try {
        return "i" + std::to_string(v.get<int32_t>());
    } catch (const json::exception &) {
        return "refused";
    }
}

template <typename T> static std::string typed(const json & v) {
    if (v.is_null()) return "null";
    try {
        return show(json(v.get<T>()));
    } catch (const json::exception &) {
        return "refused";
    }
}

static std::string read(const json & body, const char * name) {
    if (!body.is_object() || !body.contains(name)) return "-";
    const json & v = body.at(name);
    if (!strcmp(name, "n")) return number(v);
    if (!strcmp(name, "stream")) return typed<bool>(v);
    return typed<std::string>(v);
}

int main() {
    unsigned char head[4];
    while (fread(head, 1, 4, stdin) == 4) {
        std::string frame(head[0] | head[1] << 8 | head[2] << 16 | head[3] << 24, 0);
        if (fread(&frame[0], 1, frame.size(), stdin) != frame.size()) return 1;
        try {
            json body = json::parse(frame);
            printf("%s\t%s\t%s\t%s\n", show(body).c_str(), read(body, "n").c_str(), read(body, "stream").c_str(), read(body, "model").c_str());
        } catch (const json::exception &) {
            puts("refused");
        }
    }
}
